terraform {
  required_version = ">= 1.10"
  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100" }
  }
}
variable "name" { type = string }
variable "region" { type = string }
variable "queue" {
  type    = bool
  default = false # the provider waits 25 s for it
}

provider "aws" {
  region                      = var.region
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true
  s3_use_path_style           = true
  max_retries                 = 3
  default_tags {
    tags = { "windlass.dev/cluster" = var.name, "windlass.dev/managed-by" = "terraform" }
  }
}
resource "aws_vpc" "this" {
  cidr_block = "10.0.0.0/16"
  tags       = { Name = var.name }
}
resource "aws_subnet" "private" {
  count      = 2
  vpc_id     = aws_vpc.this.id
  cidr_block = "10.0.${count.index}.0/24"
  tags       = { Name = "${var.name}-private-${count.index}" }
}
resource "aws_s3_bucket" "this" {
  bucket = "${var.name}-bucket"
}
resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = jsonencode({ Version = "2012-10-17", Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }] })
}
resource "aws_iam_role_policy" "node" {
  name   = "${var.name}-node"
  role   = aws_iam_role.node.id
  policy = jsonencode({ Version = "2012-10-17", Statement = [{ Effect = "Allow", Action = "s3:GetObject", Resource = "${aws_s3_bucket.this.arn}/*" }] })
}
resource "aws_launch_template" "node" {
  name          = "${var.name}-node"
  instance_type = "m5.large"
}
resource "aws_sqs_queue" "interruptions" {
  count = var.queue ? 1 : 0
  name  = "${var.name}-interruptions"
}
output "vpc_id" { value = aws_vpc.this.id }
output "queue" {
  value     = one(aws_sqs_queue.interruptions[*].url)
  sensitive = true
}
