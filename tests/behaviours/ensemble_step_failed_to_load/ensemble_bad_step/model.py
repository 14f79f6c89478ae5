class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("a broken file")

    def execute(self, requests):
        return []
