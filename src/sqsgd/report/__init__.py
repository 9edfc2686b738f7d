"""Reports on runs: one self-contained HTML page, figures as SVG, PNG and PDF, and tables as CSV.

:mod:`~sqsgd.report.charts` describes every figure in Vega-Lite. The page shows these descriptions
interactively; vl-convert draws the files from the same ones, offline and without a browser.

>>> from sqsgd.report.page import write_report
>>> from sqsgd.report.charts import write_charts
"""
