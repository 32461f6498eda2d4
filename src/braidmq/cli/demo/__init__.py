"""`braidmq demo`: the whole product at work, with counts that must agree."""
