package internal

import (
	"net/http"
	"sync"
	"time"
)

type bucket struct {
	tokens float64
	filled time.Time
}

// Limiter allows each client a number of requests per second, with bursts.
type Limiter struct {
	mutex   sync.Mutex
	rate    float64
	burst   float64
	buckets map[string]*bucket
	now     func() time.Time
}

func NewLimiter(rate, burst float64) *Limiter {
	return &Limiter{rate: rate, burst: burst, buckets: map[string]*bucket{}, now: time.Now}
}

func (l *Limiter) Allow(client string) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := l.now()
	b, found := l.buckets[client]
	if !found {
		b = &bucket{tokens: l.burst, filled: now}
		l.buckets[client] = b
	}
	b.tokens = min(l.burst, b.tokens+l.rate*now.Sub(b.filled).Seconds())
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (l *Limiter) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.Allow(r.RemoteAddr) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}
