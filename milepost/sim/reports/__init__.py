"""Results of runs for readers: a table, JSON, CSV, Parquet, and a page with plots."""

from milepost.sim.reports.as_json import to_json
from milepost.sim.reports.flat import write_csv, write_parquet
from milepost.sim.reports.html import write_html
from milepost.sim.reports.results_table import table

__all__ = ["table", "to_json", "write_csv", "write_html", "write_parquet"]
