"""HTTP plumbing: the application, its endpoints, requests, refusals and listener."""
