"""Matrix instructions, one entry each: spelling, meaning, and which lane holds which element of A, B and C."""
