"""F-JSON: documents that are not what they should be."""

from tests.protocol.cases.case import Table, ints, with_data

T = Table("F-JSON", "4.4")

_PARSE = "failed to parse the request JSON buffer: "
_NO_INPUTS = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
_NON_STRING = "attempt to access JSON non-string as string"
_NON_ARRAY = "attempt to access JSON non-array as array"
_NON_DOUBLE = "Unable to parse 'data': attempt to access JSON non-number as double"
_NON_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
_NON_BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
_NON_TEXT = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
_RANGE = "value out of range of "

for id, body, text in (
    ("empty", "", _PARSE + "The document is empty. at 0"),
    ("blank", "  \n ", _PARSE + "The document is empty."),
    ("open-object", "{", _PARSE),
    ("open-array", "[", _PARSE),
    ("open-string", '{"inputs', _PARSE),
    ("word", "inputs", _PARSE + "Invalid value. at 0"),
    ("truncated-literal", '{"inputs":tru}', _PARSE + "Invalid value."),
    ("trailing-comma", '{"inputs":[],}', _PARSE),
    ("trailing-array-comma", '{"inputs":[1,]}', _PARSE),
    ("no-colon", '{"inputs" []}', _PARSE + "Missing a colon after a name of object member."),
    ("no-comma", '{"id":"a" "inputs":[]}', _PARSE + "Missing a comma or } after an object member."),
    ("no-array-comma", '{"inputs":[1 2]}', _PARSE + "Missing a comma or ] after an array element."),
    ("bare-key", "{inputs:[]}", _PARSE + "Missing a name for object member."),
    ("single-quotes", "{'inputs':[]}", _PARSE),
    ("two-documents", "{} {}", _PARSE + "The document root must not be followed by other values."),
    ("line-comment", '// hello\n{"inputs":[]}', _PARSE),
    ("block-comment", '{/* hello */"inputs":[]}', _PARSE),
    ("html", "<html></html>", _PARSE),
    ("bad-escape", '{"id":"\\x41","inputs":[]}', _PARSE + "Invalid escape character in string."),
    ("short-unicode-escape", '{"id":"\\u12","inputs":[]}', _PARSE),
    ("lone-high-surrogate", '{"id":"\\ud800","inputs":[]}', _PARSE + "The surrogate pair in string is invalid."),
    ("lone-low-surrogate", '{"id":"\\udc00","inputs":[]}', _PARSE),
    ("raw-newline-in-string", '{"id":"a\nb","inputs":[]}', _PARSE),
    ("leading-zero", with_data("[01]"), _PARSE),
    ("leading-plus", with_data("[+1]"), _PARSE),
    ("hex", with_data("[0x10]"), _PARSE),
    ("no-fraction", with_data("[1.]"), _PARSE),
    ("no-exponent", with_data("[1e]"), _PARSE),
    ("bare-minus", with_data("[-]"), _PARSE),
    ("nan-lower-case", with_data("[nan]"), _PARSE),
    ("nan-and-broken", with_data("[NaN,]"), _PARSE),
    ("nan-and-lone-surrogate", with_data("[NaN]", more='"id":"\\ud800",'), _PARSE),
    ("nan-and-too-big", with_data("[NaN,1e400]", [2]), _PARSE + "Number too big to be stored in double. at 65"),
    ("nan-and-too-small", with_data("[NaN,-1e400]", [2]), _PARSE + "Number too big to be stored in double."),
    ("part-of-infinity", with_data("[Infinit]"), _PARSE + "Invalid value."),
    ("inf-twice", with_data("[InfInf]"), _PARSE + "Invalid value."),
    ("nan-and-400-digits", with_data("[NaN," + "9" * 400 + "]", [2]), _PARSE + "Number too big"),
    ("nan-and-5000-digits", with_data("[NaN," + "9" * 5000 + "]", [2]), _PARSE + "Number too big"),
    ("1e400", with_data("[1e400]"), _PARSE + "Number too big to be stored in double."),
    ("5000-digits", with_data("[" + "9" * 5000 + "]"), _PARSE),
    ("null", "null", _NO_INPUTS),
    ("array", "[]", _NO_INPUTS),
    ("string", '"x"', _NO_INPUTS),
    ("number", "17", _NO_INPUTS),
    ("object", "{}", _NO_INPUTS),
    ("inputs-null", '{"inputs":null}', "Unable to parse 'inputs': " + _NON_ARRAY),
    ("inputs-object", '{"inputs":{}}', "Unable to parse 'inputs': " + _NON_ARRAY),
    ("inputs-string", '{"inputs":"X"}', "Unable to parse 'inputs': " + _NON_ARRAY),
    ("inputs-upper-case", '{"INPUTS":[]}', _NO_INPUTS),
    ("id-number", '{"id":1,"inputs":[]}', "Unable to parse 'id': " + _NON_STRING),
    ("id-null", '{"id":null,"inputs":[]}', "Unable to parse 'id': " + _NON_STRING),
    ("input-null", '{"inputs":[null]}', "But no field is set"),
    ("input-number", '{"inputs":[7]}', "But no field is set"),
    ("input-array", '{"inputs":[[]]}', "But no field is set"),
    ("input-empty", '{"inputs":[{}]}', "But no field is set"),
    ("no-name", '{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}', "object member 'name'"),
    ("name-number", '{"inputs":[{"name":1,"datatype":"FP32","shape":[1],"data":[1]}]}', _NON_STRING),
    ("no-datatype", '{"inputs":[{"name":"X","shape":[1],"data":[1]}]}', "object member 'datatype'"),
    ("datatype-null", '{"inputs":[{"name":"X","datatype":null,"shape":[1],"data":[1]}]}', _NON_STRING),
    ("no-shape", '{"inputs":[{"name":"X","datatype":"FP32","data":[1]}]}', "object member 'shape'"),
    ("shape-number", with_data("[1]", "1"), "Unable to parse 'shape': " + _NON_ARRAY),
    ("outputs-object", with_data("[1]", more='"outputs":{},'), "Unable to parse 'outputs': " + _NON_ARRAY),
    ("outputs-null", with_data("[1]", more='"outputs":null,'), "Unable to parse 'outputs': " + _NON_ARRAY),
    ("output-number", with_data("[1]", more='"outputs":[1],'), "object member 'name'"),
    ("data-null", with_data("null"), "Unable to parse 'data': " + _NON_ARRAY),
    ("data-number", with_data("1"), "Unable to parse 'data': " + _NON_ARRAY),
    ("data-string", with_data('"1"'), "Unable to parse 'data': " + _NON_ARRAY),
    ("data-object", with_data("{}"), "Unable to parse 'data': " + _NON_ARRAY),
    ("bool-as-double", with_data("[true]"), _NON_DOUBLE),
    ("string-as-double", with_data('["1"]'), _NON_DOUBLE),
    ("null-as-double", with_data("[null]"), _NON_DOUBLE),
    ("object-as-double", with_data("[{}]"), _NON_DOUBLE),
    ("bool-among-doubles", with_data("[1.5,false]", [2]), _NON_DOUBLE),
):
    T.add(id, body, text)

for id, body, text in (
    ("bool-as-int", ints("[" + ",".join(["true"] * 16) + "]"), _NON_SIGNED),
    ("one-bool-among-ints", ints("[true" + ",1" * 15 + "]"), _NON_SIGNED),
    ("float-as-int", ints("[1.5" + ",1" * 15 + "]"), _NON_SIGNED),
    ("whole-float-as-int", ints("[1.0" + ",1" * 15 + "]"), _NON_SIGNED),
    ("exponent-as-int", ints("[1e2" + ",1" * 15 + "]"), _NON_SIGNED),
    ("string-as-int", ints('["1"' + ",1" * 15 + "]"), _NON_SIGNED),
    ("null-as-int", ints("[null" + ",1" * 15 + "]"), _NON_SIGNED),
    ("nan-as-int", ints("[NaN" + ",1" * 15 + "]"), _NON_SIGNED),
    ("infinity-as-int", ints("[-Infinity" + ",1" * 15 + "]"), _NON_SIGNED),
    ("2^31-as-int32", ints("[2147483648" + ",1" * 15 + "]"), _RANGE + "INT32"),
    ("-2^31-1-as-int32", ints("[-2147483649" + ",1" * 15 + "]"), _RANGE + "INT32"),
    ("2^63-as-int", ints("[9223372036854775808" + ",1" * 15 + "]"), _NON_SIGNED),
    ("2^64-as-int", ints("[18446744073709551616" + ",1" * 15 + "]"), _NON_SIGNED),
    ("-2^63-1-as-int", ints("[-9223372036854775809" + ",1" * 15 + "]"), _NON_SIGNED),
):
    T.add(id, body, text, model="simple")

for id, data, text in (
    ("0-as-bool", "[0,1,0,1]", _NON_BOOLEAN),
    ("string-as-bool", '["true",true,true,true]', _NON_BOOLEAN),
    ("null-as-bool", "[null,true,true,true]", _NON_BOOLEAN),
):
    T.add(id, with_data(data, model="flags"), text, model="flags")

for id, data, text in (
    ("int-as-string", "[1]", _NON_TEXT),
    ("null-as-string", "[null]", _NON_TEXT),
    ("bool-as-string", "[true]", _NON_TEXT),
    ("object-as-string", '[{"b64":"YQ=="}]', _NON_TEXT),
    ("lone-surrogate-as-string", '["\\ud83d"]', _PARSE),
):
    T.add(id, with_data(data, model="strings"), text, model="strings")

T.add("utf-16", with_data("[1]").encode("utf-16"), _PARSE)
T.add("bad-utf-8", b'{"id":"\xff","inputs":[]}', _PARSE + "Invalid encoding in string.")
T.add("overlong-utf-8", b'{"id":"\xc0\xaf","inputs":[]}', _PARSE)
T.add("encoded-surrogate", b'{"id":"\xed\xa0\x80","inputs":[]}', _PARSE)
T.add("raw-nul", b'{"id":"a\x00b","inputs":[]}', _PARSE)
T.add("bad-utf-8-and-nan", b'{"id":"\xff","inputs":[NaN]}', _PARSE + "Invalid encoding in string.")
T.add("10-mb-key", lambda: b'{"' + b"k" * 10_000_000 + b'":1}', _NO_INPUTS)
T.add("10-mb-id", lambda: b'{"id":"' + b"i" * 10_000_000 + b'","inputs":[]}', "expected 1 inputs but got 0 inputs")
T.add("10-mb-input-name", lambda: with_data("[1]").replace('"X"', '"' + "n" * 10_000_000 + '"').encode(), "nnn...")
T.add("100000-keys", lambda: ("{" + ",".join(f'"k{i}":1' for i in range(100_000)) + "}").encode(), _NO_INPUTS)
T.add("json-too-large", lambda: b" " * (64 << 20) + b"{}", "exceeds the maximum allowed input size of 67108864 bytes")

T.add("nan", with_data("[NaN]"), "NaN", status=200)
T.add("infinity", with_data("[Infinity,-Infinity,1]", [3]), "[Infinity,-Infinity,1", status=200)
T.add("inf", with_data("[Inf,-Inf,1]", [3]), "[Infinity,-Infinity,1", status=200)
T.add("negative-nan", with_data("[-NaN,1]", [2], more='"id":"\\"-NaN Inf ",'), '"id":"\\"-NaN Inf ",', status=200)
T.add("nan-in-unused-member", with_data("[1]", more='"note":NaN,'))
T.add("unknown-members", with_data("[1]", more='"note":{"a":[1,2]},"x":null,'))
T.add("duplicate-key", with_data("[1]", more='"id":"a","id":"b",'), '"id":"b"', status=200)
T.add("white-space", " \t\r\n" + with_data(" [ 1 , 2 ] ", "[ 2 ]") + "\n")
T.add("escaped-name", with_data("[1]").replace('"X"', '"\\u0058"'))
T.add("unicode-id", with_data("[1]", more='"id":"żółw 🐢",'), "żółw 🐢", status=200)
T.add("2^64-as-double", with_data("[18446744073709551616]"), "1.8446744e", status=200)
T.add("-0", with_data("[-0.0]"), "-0.0", status=200)
T.add("denormal", with_data("[1e-45]"), "1e-45", status=200)
T.add("1e-400", with_data("[1e-400]"), "0.0", status=200)
T.add("nul-in-string", with_data('["a\\u0000b"]', model="strings"), "a\\u0000b", model="strings", status=200)
T.add("min-and-max-int32", ints("[-2147483648" + ",2147483647" * 15 + "]"), model="simple")

CASES = tuple(T.cases)
