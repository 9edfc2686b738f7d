"""Reports on runs: one HTML page, and figures for a paper.

:mod:`~sqsgd.report.charts` decides what is drawn. The page draws it with plotly.js, so that readers can
inspect values, zoom and hide groups; image files are drawn with matplotlib, which needs no browser.

>>> from sqsgd.report.page import write_report
>>> from sqsgd.report.images import write_images
"""
