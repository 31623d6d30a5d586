"""The report of a finished run: tables, figures and the answer in words, as one web page and as Markdown.

Everything is made from the files in the run's folder. Equal files give equal bytes; only `durations.html`
and `durations.md` hold wall-clock numbers, which differ between any two runs.
"""
