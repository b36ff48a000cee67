"""Published figures compared with the runs of a report: charts, tables, and whether the articles' claims hold."""
