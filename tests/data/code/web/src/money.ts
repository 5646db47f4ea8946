export interface Money {
  cents: number;
  currency: string;
}

export class CurrencyMismatch extends Error {
  constructor(left: string, right: string) {
    super(`cannot add ${left} and ${right}`);
    this.name = "CurrencyMismatch";
  }
}

export function zero(currency: string): Money {
  return { cents: 0, currency };
}

export function add(left: Money, right: Money): Money {
  if (left.currency !== right.currency) {
    throw new CurrencyMismatch(left.currency, right.currency);
  }
  return { cents: left.cents + right.cents, currency: left.currency };
}

export function format(money: Money, locale = "en"): string {
  const formatter = new Intl.NumberFormat(locale, { style: "currency", currency: money.currency });
  return formatter.format(money.cents / 100);
}
