"""Between the rules and the world: reads, decides, writes if unchanged."""
