"""What goes over the wire: the fields of requests, the shapes of replies, errors in OpenAI's form."""
