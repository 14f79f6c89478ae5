/* The part of NVML that names the GPUs of a node, for tests that have none: two, whose state it does not tell. */

#include <stdint.h>
#include <stdio.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, GPUS = 2 };

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = GPUS, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-%u", (unsigned)(uintptr_t)device - 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    (void)device;
    snprintf(name, length, "NVIDIA A100");
    return SUCCESS;
}
