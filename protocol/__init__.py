"""KServe v2 / Triton as data: datatypes, tensors, requests, codecs, errors and limits."""
