// SPDX-License-Identifier: Apache-2.0

package icmp

import "time"

// Bucket is a token bucket: so many a second, and so many at once. It is not for two goroutines
// at once.
type Bucket struct {
	rate, burst float64
	tokens      float64
	last        time.Time
}

// NewBucket makes a full one.
func NewBucket(rate, burst int) *Bucket {
	return &Bucket{rate: float64(rate), burst: float64(burst), tokens: float64(burst)}
}

// Take takes a token, or is false if there is none.
func (b *Bucket) Take(now time.Time) bool {
	if !b.last.IsZero() {
		b.tokens = min(b.burst, b.tokens+max(0, now.Sub(b.last).Seconds())*b.rate)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
