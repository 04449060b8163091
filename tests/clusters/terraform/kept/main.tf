# What `down` keeps, by the addresses of clusters/eks, beside what it destroys.
terraform {
  required_version = ">= 1.10"
  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100" }
  }
}
variable "name" { type = string }
variable "region" { type = string }

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
resource "aws_kms_key" "main" {
  deletion_window_in_days = 7
  tags                    = { Name = var.name }
}
resource "aws_kms_key" "bucket" {
  count                   = 1
  deletion_window_in_days = 7
  tags                    = { Name = "${var.name}-bucket" }
}
resource "aws_kms_alias" "bucket" {
  count         = 1
  name          = "alias/windlass/${var.name}/bucket"
  target_key_id = aws_kms_key.bucket[0].key_id
}
resource "aws_s3_bucket" "main" {
  count      = 1
  bucket     = "${var.name}-bucket"
  depends_on = [aws_kms_key.bucket]
}
resource "aws_s3_bucket_server_side_encryption_configuration" "main" {
  count  = 1
  bucket = aws_s3_bucket.main[0].id
  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.bucket[0].arn
    }
  }
}
resource "aws_efs_file_system" "main" {
  encrypted  = true
  kms_key_id = aws_kms_key.main.arn
  tags       = { Name = var.name }
}
resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = jsonencode({ Version = "2012-10-17", Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }] })
}
