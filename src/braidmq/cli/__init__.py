"""What an operator types. It asks the other rooms and prints what they answer."""
