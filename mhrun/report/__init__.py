"""The report: it reads run folders, judges claims and draws. It never samples."""
