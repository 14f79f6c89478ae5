/* The part of NVML that names the GPUs of a node, for tests that have none: two of 40 and 48 GiB, of whose state it tells
 * no more. */

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

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long info[3])
{
    info[0] = info[1] = (32 + 8 * (unsigned long long)(uintptr_t)device) << 30;
    return info[2] = 0, SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    (void)device;
    snprintf(name, length, "NVIDIA A100");
    return SUCCESS;
}
