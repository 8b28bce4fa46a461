/* What of DPDK is inline or a macro, one call a burst. Built with the feature `dpdk` only. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>

#define BURST 32
/* Room in a buffer for what is in front of a packet: Ethernet and tags. */
#define BEYOND_MTU 64

/* A thread that the EAL does not know has no cache of mbufs, and pays for that with every burst. */
static __thread int known;

static void know(void)
{
	if (!known) {
		known = 1;
		rte_thread_register();
	}
}

int lr_dpdk_init(int argc, char **argv)
{
	int taken = rte_eal_init(argc, argv);

	known = 1;
	return taken < 0 ? -rte_errno : 0;
}

/* Makes or takes a device, and gives the number of its port. */
int lr_dpdk_attach(const char *device, uint16_t *port)
{
	struct rte_dev_iterator it;
	uint16_t found;
	int failed;

	know();
	failed = rte_dev_probe(device);
	if (failed != 0)
		return failed;
	RTE_ETH_FOREACH_MATCHING_DEV(found, device, &it) {
		*port = found;
		rte_eth_iterator_cleanup(&it);
		return 0;
	}
	return -ENODEV;
}

/* Frames one behind the other. Without huge pages DPDK lets none cross a page: each or every second page
 * would begin with one, all of them in the same few sets of the nearest cache, and a look at a burst would
 * miss it 32 times. Where addresses of the bus are those of the process a page's end means nothing. */
static struct rte_mempool *pool_of(const char *name, unsigned int count, uint16_t room, int socket)
{
	const unsigned int cache = 256;
	struct rte_pktmbuf_pool_private own = { .mbuf_data_room_size = room };
	struct rte_mempool *frames;
	int failed;

	if (rte_eal_has_hugepages() || rte_eal_iova_mode() != RTE_IOVA_VA)
		return rte_pktmbuf_pool_create(name, count, cache, 0, room, socket);
	frames = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache, sizeof(own),
		socket, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (frames == NULL)
		return NULL;
	failed = rte_mempool_set_ops_byname(frames, rte_mbuf_best_mempool_ops(), NULL);
	if (failed == 0) {
		rte_pktmbuf_pool_init(frames, &own);
		failed = rte_mempool_populate_default(frames);
	}
	if (failed < 0) {
		rte_mempool_free(frames);
		rte_errno = -failed;
		return NULL;
	}
	rte_mempool_obj_iter(frames, rte_pktmbuf_init, NULL);
	return frames;
}

/* One queue each way over a pool of its own. */
int lr_dpdk_start(uint16_t port, const char *name, uint16_t *rxd, uint16_t *txd, uint16_t mtu,
	void **pool)
{
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	struct rte_mempool *frames;
	int socket = rte_eth_dev_socket_id(port);
	int failed;

	memset(&conf, 0, sizeof(conf));
	failed = rte_eth_dev_info_get(port, &info);
	if (failed != 0)
		return failed;
	if (info.max_mtu != 0 && mtu > info.max_mtu)
		return -EMSGSIZE;
	/* A buffer's size has 16 bits. */
	if (RTE_PKTMBUF_HEADROOM + mtu + BEYOND_MTU > UINT16_MAX)
		return -EMSGSIZE;
	conf.rxmode.mtu = mtu;
	failed = rte_eth_dev_configure(port, 1, 1, &conf);
	if (failed != 0)
		return failed;
	failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, rxd, txd);
	if (failed != 0)
		return failed;
	frames = pool_of(name, *rxd + *txd + 1024, RTE_PKTMBUF_HEADROOM + mtu + BEYOND_MTU,
		socket < 0 ? 0 : socket);
	if (frames == NULL)
		return -rte_errno;
	failed = rte_eth_rx_queue_setup(port, 0, *rxd, socket < 0 ? 0 : socket, NULL, frames);
	if (failed == 0)
		failed = rte_eth_tx_queue_setup(port, 0, *txd, socket < 0 ? 0 : socket, NULL);
	if (failed == 0)
		failed = rte_eth_dev_start(port);
	if (failed != 0) {
		rte_mempool_free(frames);
		return failed;
	}
	/* Virtual devices may have no such thing. */
	(void)rte_eth_promiscuous_enable(port);
	*pool = frames;
	return 0;
}

/* Pools of ports that are closed, until all of their buffers are back: another device may have some that were
 * handed to it. One that finds no place here stays for good. */
#define WAITING 64
static struct rte_mempool *waiting[WAITING];

static void retire(struct rte_mempool *pool)
{
	unsigned int i;

	for (i = 0; i < WAITING; i++) {
		if (waiting[i] == NULL && pool != NULL) {
			waiting[i] = pool;
			pool = NULL;
		}
		if (waiting[i] != NULL && rte_mempool_full(waiting[i])) {
			rte_mempool_free(waiting[i]);
			waiting[i] = NULL;
		}
	}
}

void lr_dpdk_stop(uint16_t port, void *pool)
{
	struct rte_mbuf *mbufs[BURST];
	uint16_t count;
	unsigned int i;

	know();
	/* What came and was not looked at: buffers of its own and of others. */
	for (i = 0; i < 1024; i++) {
		count = rte_eth_rx_burst(port, 0, mbufs, BURST);
		if (count == 0)
			break;
		rte_pktmbuf_free_bulk(mbufs, count);
	}
	if (rte_eth_dev_stop(port) == 0)
		(void)rte_eth_dev_close(port);
	retire(pool);
}

int lr_dpdk_address(uint16_t port, uint8_t *address)
{
	struct rte_ether_addr found;
	int failed = rte_eth_macaddr_get(port, &found);

	if (failed == 0)
		memcpy(address, found.addr_bytes, 6);
	return failed;
}

/* Frames that came: where their bytes are and how many. One of several parts that cannot be joined has
 * no bytes. */
uint16_t lr_dpdk_receive(uint16_t port, void **frames, const uint8_t **bytes, uint32_t *lengths,
	uint16_t most)
{
	struct rte_mbuf **mbufs = (struct rte_mbuf **)frames;
	uint16_t i, count;

	know();
	count = rte_eth_rx_burst(port, 0, mbufs, most < BURST ? most : BURST);
	for (i = 0; i < count; i++) {
		int whole = mbufs[i]->nb_segs == 1 || rte_pktmbuf_linearize(mbufs[i]) == 0;

		bytes[i] = rte_pktmbuf_mtod(mbufs[i], const uint8_t *);
		lengths[i] = whole ? rte_pktmbuf_data_len(mbufs[i]) : 0;
	}
	return count;
}

void lr_dpdk_free(void **frames, uint16_t count)
{
	rte_pktmbuf_free_bulk((struct rte_mbuf **)frames, count);
}

/* Copies frames and sends them; gives how many left, from the first on. */
uint16_t lr_dpdk_transmit(uint16_t port, void *pool, const uint8_t **bytes, const uint16_t *lengths,
	uint16_t count)
{
	struct rte_mbuf *mbufs[BURST];
	uint16_t i, sent;

	know();
	if (count > BURST)
		count = BURST;
	if (rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)
		return 0;
	for (i = 0; i < count; i++) {
		char *room = rte_pktmbuf_append(mbufs[i], lengths[i]);

		/* It would leave empty: the caller keeps it, and what is behind it. */
		if (room == NULL)
			break;
		memcpy(room, bytes[i], lengths[i]);
	}
	if (i < count) {
		rte_pktmbuf_free_bulk(mbufs + i, count - i);
		count = i;
	}
	sent = rte_eth_tx_burst(port, 0, mbufs, count);
	if (sent < count)
		rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
	return sent;
}

/* What one visit of a port moved to another one: frames that came and left, and lengths of those that were
 * looked at. */
struct lr_passed {
	uint32_t came;
	uint32_t left;
	uint32_t weighed;
	uint32_t unused;
	uint64_t came_bytes;
	uint64_t left_bytes;
};

/* Polls of a port whose frames another one sends, until one finds less than it asked for: no byte is touched.
 * Lengths of the first `weigh` polls are added up. */
void lr_dpdk_pass(uint16_t from, uint16_t to, uint16_t most, uint32_t polls, uint32_t weigh,
	struct lr_passed *passed)
{
	struct rte_mbuf *mbufs[BURST];
	uint32_t poll;

	know();
	memset(passed, 0, sizeof(*passed));
	if (most > BURST)
		most = BURST;
	for (poll = 0; poll < polls; poll++) {
		uint16_t i, count = rte_eth_rx_burst(from, 0, mbufs, most), sent;
		uint64_t bytes = 0;

		if (count == 0)
			break;
		if (poll < weigh) {
			for (i = 0; i < count; i++)
				bytes += rte_pktmbuf_pkt_len(mbufs[i]);
			passed->weighed += count;
			passed->came_bytes += bytes;
		}
		sent = rte_eth_tx_burst(to, 0, mbufs, count);
		passed->came += count;
		passed->left += sent;
		if (sent < count) {
			if (poll < weigh)
				for (i = sent; i < count; i++)
					bytes -= rte_pktmbuf_pkt_len(mbufs[i]);
			rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
		}
		passed->left_bytes += bytes;
		if (count < most)
			break;
	}
}

/* Whether the device counts the bytes that come: 0 or 1, or that nothing came yet. */
int lr_dpdk_counts_bytes(uint16_t port)
{
	struct rte_eth_stats stats;
	int failed = rte_eth_stats_get(port, &stats);

	if (failed != 0)
		return 0;
	return stats.ipackets == 0 ? -EAGAIN : stats.ibytes != 0;
}

/* Frames that the device dropped: no descriptor, bad, no mbuf. */
int lr_dpdk_dropped(uint16_t port, uint64_t *dropped)
{
	struct rte_eth_stats stats;
	int failed = rte_eth_stats_get(port, &stats);

	if (failed == 0) {
		dropped[0] = stats.imissed;
		dropped[1] = stats.ierrors;
		dropped[2] = stats.rx_nombuf;
	}
	return failed;
}
