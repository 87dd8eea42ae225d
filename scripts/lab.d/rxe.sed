# What makes the kernel's rxe, an RDMA device in software, one that goes into a pod as a NIC's own does. See fetch.

# rxe_net.c: a netdev that leaves a namespace says UNREGISTER there too, but is still registered. Only its real end is
# the end of the RDMA device.
s/^\tcase NETDEV_UNREGISTER:$/&\n\t\tif (ndev->reg_state == NETREG_REGISTERED)\n\t\t\tbreak;/

# rxe_qp.c: a move takes the device's clients away and brings them back (rdma_dev_change_netns). The one queue pair
# for management is made anew then, which is refused while the first is on the books (rxe_qp_chk_init).
/^static void rxe_qp_do_cleanup(/,/^}/ s/^\tqp->qp_timeout_jiffies = 0;$/&\n\tif (qp_type(qp) == IB_QPT_GSI)\n\t\tto_rdev(qp->ibqp.device)->port.qp_gsi_index = 0;/

# rxe_verbs.c: a device moves only if open files of it can be cut off (ib_device_set_netns_put). No file is open here.
s/^static const struct ib_device_ops rxe_dev_ops = {$/static void rxe_disassociate_ucontext(struct ib_ucontext *context)\n{\n}\n\n&\n\t.disassociate_ucontext = rxe_disassociate_ucontext,/

# And in sysfs it is below its NIC, where RDMA devices of a PCI function are looked for.
s/^\tib_set_device_ops(dev, &rxe_dev_ops);$/&\n\tdev->dev.parent = ndev->dev.parent;/
