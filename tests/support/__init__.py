"""What tests share: builders, fakes, a referee, a small world."""
