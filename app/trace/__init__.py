"""Which requests are traced, and where their traces go."""
