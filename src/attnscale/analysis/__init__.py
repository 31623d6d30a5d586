"""What is made of finished runs: intervals, verdicts, attention statistics, and the theory beside them."""
