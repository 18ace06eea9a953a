"""Many ranks: start them, and let them tell each other what they found."""
