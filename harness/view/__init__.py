"""What people see while a study runs."""
