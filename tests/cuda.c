/* The part of CUDA's driver that Eagleray calls, for tests without a GPU: two devices, whose memory is files and memory
 * of the process. The name of a file that holds an allocation is its handle; a handle that names none is refused. A device's UUID
 * is its number on the machine; CUDA_VISIBLE_DEVICES, a list of these numbers, is looked at once. What is copied to a
 * device gets there, as late as CUDA allows, when its thread next waits for it. */

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_ = 205,
    ILLEGAL_ADDRESS = 700
};
enum { DEVICES = 2, ALLOCATIONS = 64, DEPTH = 8, FETCHES = 256 };
#define STREAM_OF_THREAD ((void *)2)

typedef struct {
    char reserved[64];
} Handle;

static struct {
    char *base;
    size_t size;
} allocations[ALLOCATIONS];

static int numbers[DEVICES];
static int visible_count = -1;
static int contexts[DEVICES]; /* whether there is one */
static int lost;
static __thread void *stack[DEPTH];
static __thread int depth;
static __thread struct {
    char *bytes;
    uint64_t target;
    size_t size;
} staged;
static __thread struct {
    uint64_t target;
    const void *source;
    size_t size;
} fetches[FETCHES];
static __thread int fetch_count;

static void *current(void) { return depth ? stack[depth - 1] : NULL; }

int cuInit(unsigned flags)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    if (visible_count < 0) {
        visible_count = 0;
        if (!visible)
            visible = "0,1";
        while (*visible >= '0' && *visible < '0' + DEVICES && visible_count < DEVICES) {
            numbers[visible_count++] = *visible++ - '0';
            visible += *visible == ',';
        }
    }
    return visible_count ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *count) { return *count = visible_count, SUCCESS; }

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= visible_count)
        return INVALID_DEVICE;
    return *device = ordinal, SUCCESS;
}

int cuDeviceGetUuid_v2(char *uuid, int device) { return memset(uuid, numbers[device], 16), SUCCESS; }

/* 75 and 76 ask for the two parts of the compute capability. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return *value = attribute == 75 ? 9 : attribute == 76 ? numbers[device] : -1, SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    contexts[device] = 1;
    return *context = &contexts[device], SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    return *flags = 0, *active = contexts[device], SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) { return depth < DEPTH ? (stack[depth++] = context, SUCCESS) : INVALID_VALUE; }

int cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    return *context = stack[--depth], SUCCESS;
}

static struct {
    char *base;
    size_t size;
} pinned[ALLOCATIONS];

static int arrive(void)
{
    if (lost)
        return ILLEGAL_ADDRESS;
    if (!current())
        return INVALID_CONTEXT;
    if (staged.bytes)
        memcpy((void *)(uintptr_t)staged.target, staged.bytes, staged.size);
    free(staged.bytes);
    staged.bytes = NULL;
    for (int i = 0; i < fetch_count; i++)
        memcpy((void *)(uintptr_t)fetches[i].target, fetches[i].source, fetches[i].size);
    return fetch_count = 0, SUCCESS;
}

int cuCtxSynchronize(void) { return arrive(); }

int cuStreamSynchronize(void *stream)
{
    return stream == NULL || stream == STREAM_OF_THREAD ? arrive() : INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    const char *most = getenv("CUDA_TEST_MOST_BYTES");
    if (!current())
        return INVALID_CONTEXT;
    if (most && size > strtoull(most, NULL, 10))
        return OUT_OF_MEMORY;
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (__sync_bool_compare_and_swap(&allocations[i].base, NULL, base)) { /* other threads allocate as well */
            allocations[i].size = size;
            return *address = (uintptr_t)base, SUCCESS;
        }
    return munmap(base, size), OUT_OF_MEMORY;
}

int cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
    if (!current())
        return INVALID_CONTEXT;
    if (flags != 1 || getenv("CUDA_TEST_PINS_NOTHING"))
        return INVALID_VALUE;
    for (int i = 0; i < ALLOCATIONS; i++)
        if (pinned[i].base == address)
            return INVALID_VALUE;
    for (int i = 0; i < ALLOCATIONS; i++)
        if (!pinned[i].base)
            return pinned[i].base = address, pinned[i].size = size, SUCCESS;
    return INVALID_VALUE;
}

/* Refused once the memory is unmapped: what is mapped there next would be taken for pinned until then. */
int cuMemHostUnregister(void *address)
{
    for (int i = 0; i < ALLOCATIONS; i++)
        if (current() && pinned[i].base == address && !msync(address, pinned[i].size, MS_ASYNC))
            return pinned[i].base = NULL, SUCCESS;
    return INVALID_VALUE;
}

/* Not of CUDA: how many bytes of the CPU's memory are pinned, and of a GPU's allocated, and what a thread has not waited for. */
size_t pinnedBytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < ALLOCATIONS; i++)
        sum += pinned[i].base ? pinned[i].size : 0;
    return sum;
}

size_t allocatedBytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < ALLOCATIONS; i++)
        sum += allocations[i].base ? allocations[i].size : 0;
    return sum;
}

int fetchesUnderWay(void) { return fetch_count; }

/* Not of CUDA: from now on it answers as after a kernel that has failed. */
int loseGpus(void) { return lost = 1, SUCCESS; }

int cuIpcCloseMemHandle(uint64_t address);

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags)
{
    struct stat status;
    int file;
    if (!current())
        return INVALID_CONTEXT;
    if (flags != 1 || memchr(handle.reserved, 0, sizeof handle.reserved) == NULL)
        return INVALID_VALUE;
    if ((file = open(handle.reserved, O_RDWR)) < 0)
        return MAP_FAILED_;
    fstat(file, &status);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (!allocations[i].base) {
            allocations[i].base = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            allocations[i].size = status.st_size;
            close(file);
            return *address = (uintptr_t)allocations[i].base, SUCCESS;
        }
    return MAP_FAILED_;
}

static int inside(uint64_t address, size_t size)
{
    for (int i = 0; i < ALLOCATIONS; i++) {
        uint64_t base = (uintptr_t)allocations[i].base;
        if (base && address >= base && address + size <= base + allocations[i].size)
            return current() ? i + 1 : 0;
    }
    return 0;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address)
{
    int found = inside(address, 1);
    if (!found)
        return INVALID_VALUE;
    if (base)
        *base = (uintptr_t)allocations[found - 1].base;
    return *size = allocations[found - 1].size, SUCCESS;
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size)
{
    if (!inside(source, size))
        return INVALID_VALUE;
    arrive();
    return memcpy(target, (void *)(uintptr_t)source, size), SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size)
{
    if (!inside(target, size))
        return INVALID_VALUE;
    arrive();
    staged.bytes = memcpy(malloc(size), source, size);
    return staged.target = target, staged.size = size, SUCCESS;
}

/* It is fetched as late as can be, when somebody waits for it; from memory that is not pinned CUDA "might" copy sooner. */
int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, void *stream)
{
    if (!inside(target, size) || stream != STREAM_OF_THREAD || fetch_count == FETCHES)
        return INVALID_VALUE;
    fetches[fetch_count].target = target;
    fetches[fetch_count].source = source;
    fetches[fetch_count++].size = size;
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address) { return cuIpcCloseMemHandle(address); }

int cuIpcCloseMemHandle(uint64_t address)
{
    int found = inside(address, 1);
    if (!found)
        return INVALID_VALUE;
    char *base = allocations[found - 1].base;
    size_t size = allocations[found - 1].size;
    allocations[found - 1].base = NULL; /* before another thread gets the same address */
    return munmap(base, size), SUCCESS;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : code == MAP_FAILED_ ? "CUDA_ERROR_MAP_FAILED" : NULL;
    return SUCCESS;
}
