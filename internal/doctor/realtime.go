// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"shunt/internal/api"
)

// RealTime reports whether changes are obeyed by a real-time thread. refused is why not.
func RealTime(refused error) api.Check {
	if refused != nil {
		return warn("scheduling", fmt.Sprintf("the kernel refuses SCHED_RR (%v): beside busy programs a change is obeyed after 100 ms and more, instead of 20", refused),
			"set LimitRTPRIO=1 in the unit, or run with CAP_SYS_NICE")
	}
	return ok("scheduling", "a thread of SCHED_RR obeys changes, however busy the CPUs are")
}
