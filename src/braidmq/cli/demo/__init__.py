"""`braidmq demo`: the whole product under load, with counts that must agree."""
