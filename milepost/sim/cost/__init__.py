"""How long a step takes: by a roofline of described hardware, or by coefficients fitted to measured steps."""
