"""The model that a scaffold in a sandbox talks to: OpenAI's protocol in front of a worker's book."""
