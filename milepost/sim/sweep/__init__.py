"""Many runs of one trace: the grid of points, each put together by its names, on cores or on a cluster."""
