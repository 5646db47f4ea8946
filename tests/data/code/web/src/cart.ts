import { Money, add, zero } from "./money";

export interface Item {
  sku: string;
  title: string;
  price: Money;
  quantity: number;
}

export type Cart = ReadonlyMap<string, Item>;

export const emptyCart: Cart = new Map();

export function addItem(cart: Cart, item: Item): Cart {
  const next = new Map(cart);
  const known = next.get(item.sku);
  next.set(item.sku, known ? { ...known, quantity: known.quantity + item.quantity } : item);
  return next;
}

export function removeItem(cart: Cart, sku: string): Cart {
  const next = new Map(cart);
  next.delete(sku);
  return next;
}

// The total of an empty cart has the shop's currency.
export function total(cart: Cart, currency: string): Money {
  return [...cart.values()]
    .map((item) => ({ ...item.price, cents: item.price.cents * item.quantity }))
    .reduce(add, zero(currency));
}
