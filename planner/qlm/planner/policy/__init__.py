"""Policy around plans: what is missed and why, what would repair it, and what new work can expect."""
