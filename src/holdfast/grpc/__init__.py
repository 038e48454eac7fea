"""gRPC over HTTP/2 on sockets of our own, server and client; knows no protocol that uses it."""
