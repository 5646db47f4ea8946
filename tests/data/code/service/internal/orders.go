package internal

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

type Order struct {
	ID      int64
	Shopper string
	Cents   int64
	Placed  time.Time
}

// Orders reads and writes orders in a table of the shop's database.
type Orders struct {
	db *sql.DB
}

func (o *Orders) Find(ctx context.Context, id int64) (*Order, error) {
	row := o.db.QueryRowContext(ctx, "SELECT id, shopper, cents, placed FROM orders WHERE id = $1", id)
	var order Order
	if err := row.Scan(&order.ID, &order.Shopper, &order.Cents, &order.Placed); err != nil {
		return nil, fmt.Errorf("order %d: %w", id, err)
	}
	return &order, nil
}

func (o *Orders) Place(ctx context.Context, shopper string, cents int64) (int64, error) {
	if cents <= 0 {
		return 0, fmt.Errorf("order of %s: %d cents, expected more than 0", shopper, cents)
	}
	var id int64
	err := o.db.QueryRowContext(
		ctx, "INSERT INTO orders (shopper, cents, placed) VALUES ($1, $2, now()) RETURNING id", shopper, cents,
	).Scan(&id)
	return id, err
}
