
/* --- the model with its weights, its memory and its threads ---------------------------------------------------------
   Everything above works on memory of the caller and makes no system calls. What follows needs malloc, files and threads:
   -DMITHRIL_NO_MALLOC leaves it out, -DMITHRIL_SINGLE_THREAD leaves out the threads. */
#ifndef MITHRIL_NO_MALLOC
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int input;     /* number of the input */
    int update;    /* number of the output that replaces it, or -1 */
    size_t offset; /* in the weights */
    size_t bytes;
} @prefix@_place;

/* Results are the outputs without the updated states. */
enum {
    @prefix@_WEIGHTS = @weight_count@,
    @prefix@_INPUT_COUNT = @inputs@,
    @prefix@_DATA_COUNT = @data_count@,
    @prefix@_OUTPUT_COUNT = @outputs@,
    @prefix@_RESULT_COUNT = @results@
};
static const @prefix@_place @prefix@_weight_table[@prefix@_WEIGHTS + 1] = {
@weight_table@    {0, 0, 0, 0}};
/* Number of the input of each of the data. */
static const int @prefix@_data_table[@prefix@_DATA_COUNT + 1] = {@data_table@0};

struct @prefix@_model {
    const void *inputs[@prefix@_INPUT_COUNT + 1];
    void *outputs[@prefix@_OUTPUT_COUNT + 1];
    void *copies[@prefix@_WEIGHTS + 1]; /* of states that cannot be updated in place */
    unsigned char *weights;
    const void *packed;
    void *arena;
    mithril_pool *pool;
@mesh_field@};

/* Memory at a multiple of 64. */
static void *@prefix@_allocate(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

#ifndef MITHRIL_SINGLE_THREAD
#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif

typedef struct @prefix@_threads {
    mithril_pool pool; /* first: its address is that of the pool */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    void (*work)(void *context, int thread);
    void *context;
    unsigned job;
    int processor; /* of the caller */
    int remaining, stop, started;
    pthread_t *threads;
} @prefix@_threads;

#ifdef __linux__
static int @prefix@_processor(void) { return sched_getcpu(); }

/* A worker that was woken on the processor of its caller moves to another one: the caller spins there, and the scheduler
   takes longer than a call to separate them. If there is no other processor, they share it. */
static void @prefix@_leave(int occupied) {
    cpu_set_t all, others;
    if (occupied < 0 || occupied >= CPU_SETSIZE || sched_getcpu() != occupied) return;
    if (sched_getaffinity(0, sizeof all, &all)) return;
    others = all;
    CPU_CLR(occupied, &others);
    if (CPU_COUNT(&others) == 0) return;
    /* From now on it may run on any of them again. */
    sched_setaffinity(0, sizeof others, &others);
    sched_setaffinity(0, sizeof all, &all);
}
#else
static int @prefix@_processor(void) { return -1; }
static void @prefix@_leave(int occupied) { (void)occupied; }
#endif

static void *@prefix@_worker(void *argument) {
    @prefix@_threads *all = argument;
    unsigned done = 0;
    pthread_mutex_lock(&all->lock);
    int thread = ++all->started;
    pthread_cond_signal(&all->done);
    for (;;) {
        int slept = 0;
        for (; all->job == done && !all->stop; slept = 1) pthread_cond_wait(&all->wake, &all->lock);
        if (all->stop) break;
        done = all->job;
        int processor = all->processor;
        pthread_mutex_unlock(&all->lock);
        if (slept) @prefix@_leave(processor);
        all->work(all->context, thread);
        pthread_mutex_lock(&all->lock);
        if (--all->remaining == 0) pthread_cond_signal(&all->done);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void @prefix@_work(mithril_pool *pool, void (*work)(void *context, int thread), void *context) {
    @prefix@_threads *all = (@prefix@_threads *)pool;
    pthread_mutex_lock(&all->lock);
    all->work = work;
    all->context = context;
    all->processor = @prefix@_processor();
    all->remaining = pool->threads - 1;
    ++all->job;
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
    work(context, 0);
    pthread_mutex_lock(&all->lock);
    while (all->remaining > 0) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void @prefix@_stop(mithril_pool *pool) {
    @prefix@_threads *all = (@prefix@_threads *)pool;
    pthread_mutex_lock(&all->lock);
    all->stop = 1;
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
    for (int i = 0; i < pool->threads - 1; i++) pthread_join(all->threads[i], NULL);
    pthread_cond_destroy(&all->wake);
    pthread_cond_destroy(&all->done);
    pthread_mutex_destroy(&all->lock);
    free(all->threads);
    free(all);
}

/* A pool of so many threads, or of fewer if the system has no more; NULL: the calling thread does all the work. */
static mithril_pool *@prefix@_start(int threads) {
    if (threads < 2) return NULL;
    @prefix@_threads *all = calloc(1, sizeof *all);
    if (!all) return NULL;
    all->threads = calloc((size_t)threads, sizeof *all->threads);
    if (!all->threads) {
        free(all);
        return NULL;
    }
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->wake, NULL);
    pthread_cond_init(&all->done, NULL);
    all->pool.run = @prefix@_work;
    all->pool.threads = 1;
    while (all->pool.threads < threads &&
            pthread_create(&all->threads[all->pool.threads - 1], NULL, @prefix@_worker, all) == 0)
        ++all->pool.threads;
    /* Workers number themselves: the first call waits until all have done so. */
    pthread_mutex_lock(&all->lock);
    while (all->started < all->pool.threads - 1) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
    return &all->pool;
}
#else
static mithril_pool *@prefix@_start(int threads) {
    (void)threads;
    return NULL;
}
static void @prefix@_stop(mithril_pool *pool) { (void)pool; }
#endif

@reading@/* The file: 64 bytes that identify the model, then its weights. */
enum { @prefix@_HEAD = 64 };
static const size_t @prefix@_weight_bytes = @weight_bytes@;

/* Whether a file that starts with these bytes holds the weights of this model. */
static int @prefix@_is_mine(const unsigned char *head) {
    static const unsigned long long mine = @weight_mark@ULL;
    unsigned long long mark;
    memcpy(&mark, head + 8, sizeof mark);
    return memcmp(head, "MITHRIL1", 8) == 0 && mark == mine;
}

#if defined __unix__ || defined __APPLE__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void @prefix@_release(unsigned char *weights) {
    if (weights) munmap(weights - @prefix@_HEAD, @prefix@_HEAD + @prefix@_weight_bytes);
}

/* Maps the file of weights: pages that are not read take no memory, and all processes that map it share one copy. The file
   is never written. Returns 0, or the value of errno. */
static int @prefix@_read(@prefix@_model *model, const char *path) {
    const size_t bytes = @prefix@_HEAD + @prefix@_weight_bytes;
    struct stat about;
    if (!path) return EINVAL;
    int file = open(path, O_RDONLY), problem = 0;
    if (file < 0) return errno;
    if (fstat(file, &about)) problem = errno;
    else if (about.st_size < 0 || (unsigned long long)about.st_size != bytes) problem = EINVAL;
    if (!problem) {
        void *map = mmap(NULL, bytes, @protection@, MAP_PRIVATE, file, 0);
        if (map == MAP_FAILED) problem = errno;
        else model->weights = (unsigned char *)map + @prefix@_HEAD;
    }
    close(file);
    if (problem) return problem;
    return @prefix@_is_mine(model->weights - @prefix@_HEAD) ? 0 : EINVAL;
}
#else
static void @prefix@_release(unsigned char *weights) { free(weights); }

/* Reads the file of weights. Returns 0, or the value of errno. */
static int @prefix@_read(@prefix@_model *model, const char *path) {
    unsigned char head[@prefix@_HEAD];
    if (!path) return EINVAL;
    model->weights = @prefix@_allocate(@prefix@_weight_bytes);
    if (!model->weights) return ENOMEM;
    FILE *file = fopen(path, "rb");
    if (!file) return errno;
    int is_mine = fread(head, 1, sizeof head, file) == sizeof head && @prefix@_is_mine(head) &&
            fread(model->weights, 1, @prefix@_weight_bytes, file) == @prefix@_weight_bytes && fgetc(file) == EOF;
    fclose(file);
    return is_mine ? 0 : EINVAL;
}
#endif
@reading@
void @prefix@_close(@prefix@_model *model) {
    if (!model) return;
    if (model->pool) @prefix@_stop(model->pool);
    for (int i = 0; i < @prefix@_WEIGHTS; i++) free(model->copies[i]);
@free_packed@@release@    free(model->arena);
    free(model);
}

/* Sets the pointers to parameters and states. */
static int @prefix@_prepare(@prefix@_model *model) {
    for (int i = 0; i < @prefix@_WEIGHTS; i++) {
        const @prefix@_place *weight = &@prefix@_weight_table[i];
        model->inputs[weight->input] = @weight_address@;
        if (weight->update < 0) continue;
        @copied@/* It is updated in place. */
        model->outputs[weight->update] = (void *)model->inputs[weight->input];
    }
    @packing@  model->arena = @prefix@_allocate(@arena_function@(model->pool ? model->pool->threads : 1));
    return model->arena ? problem : ENOMEM;
}

@prefix@_model *@prefix@_open(const char *weights, int threads@mesh_parameter@) {
    @prefix@_model *model = calloc(1, sizeof *model);
    int problem = ENOMEM;
    if (model) {
@set_mesh@        model->pool = @prefix@_start(threads);
        problem = @read@;
        if (!problem) problem = @prefix@_prepare(model);
    }
    if (!problem) return model;
    @prefix@_close(model);
    errno = problem;
    return NULL;
}

const void *@prefix@_weight(const @prefix@_model *model, int number) {
    return number >= 0 && number < @prefix@_WEIGHTS ? model->inputs[@prefix@_weight_table[number].input] : NULL;
}

int @prefix@_call(@prefix@_model *model, const void *const data[], void *const outputs[]) {
    for (int i = 0; i < @prefix@_DATA_COUNT; i++) model->inputs[@prefix@_data_table[i]] = data[i];
    for (int i = 0; i < @prefix@_RESULT_COUNT; i++) model->outputs[i] = outputs[i];
    return @prefix@_run(model->inputs, model->outputs, model->packed, model->arena, model->pool@mesh_argument@);
}
@batch_call@@mesh_table@#endif
