"""The forms in which a plan is shown: a terminal's tables, JSON, and a page with plots."""
