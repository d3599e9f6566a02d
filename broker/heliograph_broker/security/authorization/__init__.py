"""Authorization: what an identity may do, and the rule that decided."""
