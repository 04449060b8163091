# A VPC across the zones: public subnets for NAT and load balancers, private subnets for nodes and pods.

data "aws_availability_zones" "available" {
  #checkov:skip=CKV_AWS_394:Only the first zone_count of the sorted names are used; the variable zones fixes them.
  state = "available"
  # EKS does not support control planes in these zones.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  # Excludes Local Zones and Wavelength Zones.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  zones = length(var.zones) > 0 ? var.zones : slice(
    sort(data.aws_availability_zones.available.names), 0, min(var.zone_count, length(data.aws_availability_zones.available.names))
  )
  # Six eighths of the range are private, the last eighth is public: appending a zone does not move existing subnets.
  private_cidrs = { for index, zone in local.zones : zone => cidrsubnet(var.vpc_cidr, 3, index) }
  public_cidrs  = { for index, zone in local.zones : zone => cidrsubnet(cidrsubnet(var.vpc_cidr, 3, 7), 3, index) }
  nat_zones     = var.nat == "one" ? slice(local.zones, 0, 1) : local.zones
}

resource "aws_vpc" "main" {
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = local.names["aws_vpc.main"] }
}

# The default security group stays without rules: nothing uses it.
resource "aws_default_security_group" "main" {
  vpc_id = aws_vpc.main.id
  tags   = { Name = local.names["aws_default_security_group.main"] }
}

resource "aws_internet_gateway" "main" {
  vpc_id = aws_vpc.main.id
  tags   = { Name = local.names["aws_internet_gateway.main"] }
}

resource "aws_subnet" "private" {
  for_each          = local.private_cidrs
  vpc_id            = aws_vpc.main.id
  availability_zone = each.key
  cidr_block        = each.value

  tags = {
    Name                              = replace(local.names["aws_subnet.private"], "{key}", each.key)
    "kubernetes.io/role/internal-elb" = "1"
    "karpenter.sh/discovery"          = var.name
  }
}

resource "aws_subnet" "public" {
  for_each          = local.public_cidrs
  vpc_id            = aws_vpc.main.id
  availability_zone = each.key
  cidr_block        = each.value

  tags = {
    Name                     = replace(local.names["aws_subnet.public"], "{key}", each.key)
    "kubernetes.io/role/elb" = "1"
  }
}

resource "aws_eip" "nat" {
  for_each = toset(local.nat_zones)
  domain   = "vpc"
  tags     = { Name = replace(local.names["aws_eip.nat"], "{key}", each.key) }

  depends_on = [aws_internet_gateway.main]
}

resource "aws_nat_gateway" "main" {
  for_each      = toset(local.nat_zones)
  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.public[each.key].id
  tags          = { Name = replace(local.names["aws_nat_gateway.main"], "{key}", each.key) }

  depends_on = [aws_internet_gateway.main]
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.main.id
  tags   = { Name = local.names["aws_route_table.public"] }
}

resource "aws_route" "public" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.main.id
}

# Keys come from variables and zones, not from other resources, so that `terraform import` can resolve them.
resource "aws_route_table_association" "public" {
  for_each       = local.public_cidrs
  route_table_id = aws_route_table.public.id
  subnet_id      = aws_subnet.public[each.key].id
}

# One route table per zone even with a single NAT gateway, so that a change to several gateways replaces only routes.
resource "aws_route_table" "private" {
  for_each = local.private_cidrs
  vpc_id   = aws_vpc.main.id
  tags     = { Name = replace(local.names["aws_route_table.private"], "{key}", each.key) }
}

resource "aws_route" "private" {
  for_each               = local.private_cidrs
  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.main[var.nat == "one" ? local.zones[0] : each.key].id
}

resource "aws_route_table_association" "private" {
  for_each       = local.private_cidrs
  route_table_id = aws_route_table.private[each.key].id
  subnet_id      = aws_subnet.private[each.key].id
}

# Keeps S3 traffic off the NAT gateway, which would cost 0.045 USD/GB.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.main.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = concat([aws_route_table.public.id], [for table in aws_route_table.private : table.id])
  tags              = { Name = local.names["aws_vpc_endpoint.s3"] }
}

resource "aws_flow_log" "main" {
  vpc_id          = aws_vpc.main.id
  traffic_type    = "REJECT"
  iam_role_arn    = aws_iam_role.flow.arn
  log_destination = aws_cloudwatch_log_group.flow.arn
  tags            = { Name = local.names["aws_flow_log.main"] }
}

# Nodes have this group in addition to the cluster's group from EKS. EFA requires rules for the group in both directions.
resource "aws_security_group" "node" {
  name        = local.names["aws_security_group.node"]
  description = "Nodes of ${var.name}: all traffic between them, and outwards"
  vpc_id      = aws_vpc.main.id

  tags = {
    Name                     = local.names["aws_security_group.node"]
    "karpenter.sh/discovery" = var.name
  }
}

resource "aws_vpc_security_group_ingress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  description                  = "All from nodes, EFA too"
  tags                         = { Name = "${local.names["aws_security_group.node"]}-self" }
}

resource "aws_vpc_security_group_egress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  description                  = "All to nodes, EFA too"
  tags                         = { Name = "${local.names["aws_security_group.node"]}-self" }
}

resource "aws_vpc_security_group_egress_rule" "node_all" {
  security_group_id = aws_security_group.node.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "Images, packages and the services of AWS"
  tags              = { Name = "${local.names["aws_security_group.node"]}-outwards" }
}
