"""What the stack survives: each part is killed (survival), cycles are killed and resumed (kills)."""
