import torch


class Sums(torch.nn.Module):
    def forward(self, x, y):
        assert torch.is_inference_mode_enabled() and not self.training
        return x + y, x.sum(dim=1, keepdim=True)
