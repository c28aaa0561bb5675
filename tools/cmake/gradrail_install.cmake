# filled in by install rules
