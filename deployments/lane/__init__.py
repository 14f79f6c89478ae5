"""The data plane between processes: frames over Unix and TCP sockets."""
