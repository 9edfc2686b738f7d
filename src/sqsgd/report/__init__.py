"""What runs reached and promised, as one HTML page and as figures for a paper.

>>> from sqsgd.report.page import write_report
>>> from sqsgd.report.images import write_images
"""
