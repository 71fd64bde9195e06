"""From bytes to pages: layouts, the page pool and the tables of a sequence."""
