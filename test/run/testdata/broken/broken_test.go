// SPDX-License-Identifier: Apache-2.0

// Package broken does not compile.
package broken

var _ int = "no number"
