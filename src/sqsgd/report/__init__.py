"""What runs reached and promised, as one HTML page and as figures for a paper.

:mod:`~sqsgd.report.charts` decides what is drawn. The page draws it with plotly, so that a reader can point,
zoom and hide groups; the files for papers are drawn with matplotlib, which needs no browser to write SVG.

>>> from sqsgd.report.page import write_report
>>> from sqsgd.report.images import write_images
"""
