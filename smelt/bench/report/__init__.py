"""`smelt bench report`: saved benchmark runs as figures, as Markdown, as one HTML page, and in comparison.

The modules in the order of the flow: summary (figures), compare (two runs), sections and rows (figures as plain text),
plots, then markdown and html, which render all of it, and write.
"""
