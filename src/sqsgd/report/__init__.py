"""Reports on runs: one self-contained HTML page, figures as SVG, PNG and PDF, and tables as CSV."""
