package internal

import (
	"context"
	"errors"
	"sync"
)

var ErrClosed = errors.New("queue: closed")

// Queue is a bounded first-in first-out queue for many producers and consumers.
type Queue[T any] struct {
	items  chan T
	once   sync.Once
	closed chan struct{}
}

func NewQueue[T any](size int) *Queue[T] {
	return &Queue[T]{items: make(chan T, size), closed: make(chan struct{})}
}

func (q *Queue[T]) Put(ctx context.Context, item T) error {
	select {
	case <-q.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case q.items <- item:
		return nil
	}
}

func (q *Queue[T]) Get(ctx context.Context) (T, error) {
	var none T
	select {
	case item := <-q.items:
		return item, nil
	case <-q.closed:
		return none, ErrClosed
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

func (q *Queue[T]) Close() {
	q.once.Do(func() { close(q.closed) })
}
