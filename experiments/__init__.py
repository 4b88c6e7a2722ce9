"""What is each paper's own: its claims, figures and tables. One folder per paper."""
